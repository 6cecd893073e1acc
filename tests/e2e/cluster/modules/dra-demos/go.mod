module gpushare.dev/e2e/dra-demos

go 1.26.0

require (
	sigs.k8s.io/dra-driver-nvidia-gpu v0.4.1
	sigs.k8s.io/dra-example-driver v0.4.0
)
