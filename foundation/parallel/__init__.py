"""How one model is spread over processes; the model files know nothing of it."""
