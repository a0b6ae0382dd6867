"""The kind of lane whose workers are processes on the nodes of a Ray cluster."""

PROTOCOL = "2"  # of what main processes and agents say to each other; packages that differ in it do not work together
