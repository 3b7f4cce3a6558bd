"""`make chaos`: run tests while processes and threads of theirs are frozen at random, but seeded.

`hearing` is told of forks and execs by the kernel, `freezing` holds processes in a control group,
`deciding` says who is frozen and for how long, `plugin` tells which test is under way, and
`command` runs the tests and reports.
"""
