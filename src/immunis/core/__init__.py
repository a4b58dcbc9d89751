"""What every room stands on: errors, files, records, processes, jobs."""
