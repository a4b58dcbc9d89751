"""The paper's linear experiments, run again and set beside what it printed."""
