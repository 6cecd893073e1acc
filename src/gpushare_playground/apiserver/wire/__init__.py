"""Wire formats: bodies of requests, types of fields, discovery and OpenAPI, access reviews."""
