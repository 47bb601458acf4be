"""Routes of the API by what they are about; each takes what it needs by FastAPI and answers with a body."""
