"""MiniWoB++: tasks on small web pages, in a real Chromium."""
