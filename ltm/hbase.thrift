// The part of HBase's Thrift 2 interface that hbase_client.py calls. Numbers, types and the names of calls are those of
// the server; the names of structures never travel, so they are ours. SPDX-License-Identifier: Apache-2.0

struct TimeRange {
  1: required i64 first,
  2: required i64 stop
}

struct Column {
  1: required binary family,
  2: optional binary qualifier,
  3: optional i64 timestamp
}

struct ColumnValue {
  1: required binary family,
  2: required binary qualifier,
  3: required binary value,
  4: optional i64 timestamp
}

struct Result {
  1: optional binary row,
  2: required list<ColumnValue> values
}

struct Get {
  1: required binary row,
  2: optional list<Column> columns,
  4: optional TimeRange time_range,
  5: optional i32 versions,
  6: optional binary filter
}

struct Put {
  1: required binary row,
  2: required list<ColumnValue> values
}

struct Delete {
  1: required binary row,
  2: optional list<Column> columns,
  3: optional i64 timestamp,
  // 0 one version of a column, 1 all up to a timestamp, 2 the same of a family, 3 one version of a family
  4: optional i32 kind = 1
}

struct Scan {
  1: optional binary start,
  2: optional binary stop,
  3: optional list<Column> columns,
  4: optional i32 caching,
  5: optional i32 versions = 1,
  6: optional TimeRange time_range,
  7: optional binary filter,
  11: optional bool reversed,
  15: optional i32 limit
}

union Mutation {
  1: Put put,
  2: Delete remove
}

struct RowMutations {
  1: required binary row,
  2: required list<Mutation> mutations
}

struct TableName {
  1: optional binary namespace_,
  2: required binary name
}

struct Family {
  1: required binary name,
  10: optional i32 versions_max
}

struct TableDescriptor {
  1: required TableName table,
  2: optional list<Family> families
}

struct NamespaceDescriptor {
  1: required string name
}

exception Failure {
  1: optional string message,
  2: optional bool can_retry
}

exception IllegalArgument {
  1: optional string message
}

service THBaseService {
  Result get(1: required binary table, 2: required Get get) throws (1: Failure io)
  list<Result> getMultiple(1: required binary table, 2: required list<Get> gets) throws (1: Failure io)
  void putMultiple(1: required binary table, 2: required list<Put> puts) throws (1: Failure io)
  list<Delete> deleteMultiple(1: required binary table, 2: required list<Delete> deletes) throws (1: Failure io)
  bool checkAndPut(1: required binary table, 2: required binary row, 3: required binary family,
    4: required binary qualifier, 5: binary value, 6: required Put put) throws (1: Failure io)
  list<Result> getScannerResults(1: required binary table, 2: required Scan scan, 3: i32 rows) throws (1: Failure io)
  bool tableExists(1: TableName table) throws (1: Failure io)
  void createTable(1: required TableDescriptor table, 2: optional list<binary> splits) throws (1: Failure io)
  void disableTable(1: required TableName table) throws (1: Failure io)
  void deleteTable(1: required TableName table) throws (1: Failure io)
  list<TableName> getTableNamesByNamespace(1: required string name) throws (1: Failure io)
  void createNamespace(1: required NamespaceDescriptor namespace_) throws (1: Failure io)
  void deleteNamespace(1: required string name) throws (1: Failure io)
  list<string> listNamespaces() throws (1: Failure io)
}
