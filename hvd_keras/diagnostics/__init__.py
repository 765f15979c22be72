"""What helps when a job stands still or ends: stacks, the flight recorder, its reader."""

# What a flight recorder's files say they are.
FORMAT = "hvd_keras flight recorder 1"
