"""What a training leaves behind: its log, its report, its summary, and its run of an experiment tracker."""
