"""OpenAI Responses and the servers that speak it."""
