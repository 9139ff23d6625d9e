"""Two-phase commit over several LTMs, the coordinator's side. It keeps nothing on disk."""
