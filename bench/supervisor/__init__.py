"""One light process per rank that runs jobs on fresh workers and says how each of them ended."""
