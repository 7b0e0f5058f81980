"""Records the first environments and turns them into MP4 files, without slowing training."""
