"""The server's processes: started, watched and ended together."""
