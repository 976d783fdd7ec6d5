"""An HTTP server with OpenAI's interface, over a batch."""
