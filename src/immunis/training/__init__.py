"""How a network is trained: the loss, the step, the loop, the choice of the best."""
