"""What Horovod has in common for all frameworks."""
