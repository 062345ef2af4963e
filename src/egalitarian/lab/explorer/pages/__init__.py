"""The explorer's pages. Its files need NiceGUI: only `server.py` imports them, when it serves."""
