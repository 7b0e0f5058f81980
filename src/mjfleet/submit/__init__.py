"""`mjfleet submit`: files that run a command on a cluster, by SLURM, SkyPilot or Kubernetes."""
