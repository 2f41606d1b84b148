"""What the legs run: a file a contestant. Each function takes a spec, returns its samples, and imports nothing of a rival's."""
