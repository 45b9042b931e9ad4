"""From the foundation model to small students: soft labels, distillation, export to a bundle."""
