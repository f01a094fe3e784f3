"""Vertex AI Search (Discovery Engine) `:streamAnswer`."""
