"""The view maintenance system: deferred views are refreshed from the commit log (Adler's VMS, Nikolov's change tables).

    subsystem      what was committed since each view's watermark, divided between view managers by a hash ring
    view_manager   propagates its share of a step and gives back its part of each view's change table
    scheduler      which group of views is due, and what intervals a target lag asks for
    steps          one step of a group, from W0 to W1: its phases and what each of them leaves in the log

None of them does I/O or looks at a clock; `coordinator/refresher.py` drives them in this process.
"""
