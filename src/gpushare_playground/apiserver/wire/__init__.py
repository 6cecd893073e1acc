"""What goes over the wire: bodies of requests, types of fields, discovery and OpenAPI, reviews of access."""
