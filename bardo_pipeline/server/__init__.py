"""Server: the resident process by which agents reach a home, over HTTP and over the Model Context Protocol."""
