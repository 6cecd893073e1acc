module gpushare.dev/benchmarks/nullextender

go 1.21
