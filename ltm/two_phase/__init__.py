"""Two-phase commit over several LTMs, the participant's side: holds, marks, votes and decisions."""
