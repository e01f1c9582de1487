"""Token-level workflows (`RolloutWorkflow`): the engine that they call, and the tensors that they may return."""
