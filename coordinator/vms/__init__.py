"""The view maintenance system: deferred views are refreshed from the commit log (Adler's VMS, Nikolov's change tables).

    subsystem      what was committed since each view's watermark, divided between view managers by a hash ring
    view_manager   propagates its share of a step and gives back its part of each view's change table
    scheduler      which group of views is due, and what intervals a target lag asks for
    steps          one step of a group, from W0 to W1: its phases and what each of them leaves in the log

In a cluster:

    step_rows              what is durable of a step: rows that ordinary transactions write
    cluster_subsystem      a participant that follows its own commits: closes W1, hands out shares of changes
    cluster_view_manager   collects the share of a slot, propagates with look-ups as of W0 and W1, commits its part
    cluster_scheduler      opens, closes, divides and publishes steps; cluster_leader has it in the elected leader
    cluster_client         how both ask coordinators; look_ups_between: what is read at W0 and at W1

None of them does I/O or looks at a clock; `coordinator/refresher.py` drives them in this process.
"""
