"""Hand the policy's weights from the learner to engines, as numbered policy versions."""
