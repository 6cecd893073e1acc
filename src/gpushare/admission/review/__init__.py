"""AdmissionReviews: parsed, dispatched to rules and guards, answered over HTTP."""
