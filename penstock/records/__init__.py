"""Binary values of Kafka's records, in Avro and Protobuf, as Arrow; and registries of their schemas."""
