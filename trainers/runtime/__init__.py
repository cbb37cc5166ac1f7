"""What runs in every replica of a job, whatever it trains: the entry program and what it keeps."""
