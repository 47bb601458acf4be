"""The API as it is served: the door in front, the app over all routes, the server with its socket."""
