"""The cluster: the elected leader, and coordinators that follow the range map."""
