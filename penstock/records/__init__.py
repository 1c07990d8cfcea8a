"""Decode binary values of Kafka records, in Avro and Protobuf, to Arrow, with schemas from registries."""
