module runtimes

go 1.19
