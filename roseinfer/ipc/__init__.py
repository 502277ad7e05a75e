"""The one channel between the HTTP front end and the engine process."""
