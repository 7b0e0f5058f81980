"""What finds a training that has gone wrong."""
