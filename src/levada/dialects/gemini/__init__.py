"""Google Gemini `streamGenerateContent`, of the Gemini API and of Vertex AI."""
