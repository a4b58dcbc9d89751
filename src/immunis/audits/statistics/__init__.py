"""From learning curves and answered rows to what they mean: intervals, costs, worst cases."""
