"""What a training tells: its log while it runs; its report, its summary and its run of a tracker afterwards."""
