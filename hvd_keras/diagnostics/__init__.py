"""What helps when a job stands still or ends: stacks, the flight recorder, its reader."""
