"""One LTM process in a cluster: its session, its part of the range map, the participants that it answers for."""
