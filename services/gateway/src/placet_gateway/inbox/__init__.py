"""The web inbox: pages for the people who decide, made on the server, on the same door and facts as the HTTP API."""
