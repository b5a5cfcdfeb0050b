module rewind/interop/go_amqp

go 1.18

require github.com/Azure/go-amqp v1.4.0
