// SPDX-License-Identifier: Apache-2.0
import java.io.File;
import java.io.RandomAccessFile;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HConstants;
import org.apache.hadoop.hbase.LocalHBaseCluster;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.zookeeper.MiniZooKeeperCluster;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * Starts a development HBase. The site file is found on the class path, as HBase does it.
 *
 * <pre>
 *   Launcher GUARD together REGION_SERVERS THRIFT1_PORT THRIFT2_PORT   all of it in this one process
 *   Launcher GUARD alone CLASS ARGUMENT...                             one HBase daemon in this process
 *   Launcher -     admin COMMAND...                                    see Administration
 * </pre>
 *
 * GUARD is a file whose first byte every user of the servers keeps a shared POSIX lock on, or "-" for none. When nobody has one any
 * more, however they ended, this process halts: nothing is left behind by a test run that was killed.
 */
public final class Launcher {
  private static final long GUARD_CHECK_MS = 300;

  public static void main(String[] arguments) {
    List<String> rest = Arrays.asList(arguments).subList(2, arguments.length);
    try {
      if (!arguments[0].equals("-")) {
        guard(new File(arguments[0]));
      }
      switch (arguments[1]) {
        case "together" -> together(rest);
        case "alone" -> alone(rest);
        case "admin" -> Administration.run(rest);
        default -> throw new IllegalArgumentException("together, alone or admin, not " + arguments[1]);
      }
    } catch (Throwable failure) {
      failure.printStackTrace();
      // Threads that HBase has started would keep a process alive that serves nobody.
      Runtime.getRuntime().halt(1);
    }
  }

  private static void together(List<String> arguments) throws Exception {
    Configuration site = HBaseConfiguration.create();
    // A second region server in the process would register metrics under names that are taken, and abort.
    DefaultMetricsSystem.setMiniClusterMode(true);
    MiniZooKeeperCluster zooKeeper = new MiniZooKeeperCluster(site);
    int port = site.getInt(HConstants.ZOOKEEPER_CLIENT_PORT, -1);
    zooKeeper.setDefaultClientPort(port);
    zooKeeper.setTickTime(site.getInt("hbase.zookeeper.property.tickTime", 2000));
    int bound = zooKeeper.startup(new File(site.get(HConstants.ZOOKEEPER_DATA_DIR)));
    if (bound != port) {
      // It takes the next free one by itself, where nobody would look for it.
      throw new IllegalStateException("port " + port + " of ZooKeeper is taken");
    }
    System.out.println("zookeeper");
    LocalHBaseCluster cluster = new LocalHBaseCluster(site, 1, Integer.parseInt(arguments.get(0)));
    thrift(new org.apache.hadoop.hbase.thrift.ThriftServer(new Configuration(site)), arguments.get(1));
    thrift(new org.apache.hadoop.hbase.thrift2.ThriftServer(new Configuration(site)), arguments.get(2));
    cluster.startup();
    System.out.println("servers");
    cluster.join();
  }

  private static void thrift(org.apache.hadoop.hbase.thrift.ThriftServer server, String port) {
    Thread thread = new Thread(() -> {
      try {
        server.run(new String[] {"-p", port, "-b", "127.0.0.1", "start"});
      } catch (Throwable failure) {
        failure.printStackTrace();
        Runtime.getRuntime().halt(1);
      }
    }, "thrift " + port);
    thread.setDaemon(true);
    thread.start();
  }

  private static void alone(List<String> arguments) throws Exception {
    String[] rest = arguments.subList(1, arguments.size()).toArray(new String[0]);
    Class.forName(arguments.get(0)).getMethod("main", String[].class).invoke(null, (Object) rest);
  }

  private static void guard(File file) throws Exception {
    FileChannel channel = new RandomAccessFile(file, "rw").getChannel();
    Thread thread = new Thread(() -> {
      FileLock everybodyIsGone = null;
      try {
        while (everybodyIsGone == null) {
          Thread.sleep(GUARD_CHECK_MS);
          everybodyIsGone = channel.tryLock(0, 1, false);
        }
      } catch (Exception failure) {
        failure.printStackTrace();
      }
      // With the lock: who wants to use the servers now waits for it, and finds that they are gone.
      Runtime.getRuntime().halt(0);
    }, "guard");
    thread.setDaemon(true);
    thread.start();
  }

  /** What tests do to regions, which Thrift has no calls for. Several commands are run one after another. */
  private static final class Administration {
    static void run(List<String> words) throws Exception {
      try (Connection connection = ConnectionFactory.createConnection(HBaseConfiguration.create());
          Admin admin = connection.getAdmin()) {
        int at = 0;
        while (at < words.size()) {
          if (words.get(at).equals("servers")) {
            admin.getRegionServers().forEach(server -> System.out.println(server.getPort()));
            at++;
            continue;
          }
          TableName table = TableName.valueOf(words.get(at + 1));
          switch (words.get(at)) {
            case "split" -> {
              split(admin, table, HexFormat.of().parseHex(words.get(at + 2)));
              at++;
            }
            case "move" -> move(admin, table);
            case "flush" -> admin.flush(table);
            case "compact" -> compact(admin, table);
            case "where" -> where(connection, table);
            default -> throw new IllegalArgumentException(words.get(at));
          }
          at += 2;
        }
      }
      Runtime.getRuntime().halt(0);
    }

    private static void split(Admin admin, TableName table, byte[] row) throws Exception {
      int before = admin.getRegions(table).size();
      admin.split(table, row);
      while (admin.getRegions(table).size() <= before) {
        Thread.sleep(20);
      }
    }

    /** Every region of the table to the next server. */
    private static void move(Admin admin, TableName table) throws Exception {
      List<ServerName> servers = List.copyOf(admin.getRegionServers());
      try (var locator = admin.getConnection().getRegionLocator(table)) {
        for (RegionInfo region : admin.getRegions(table)) {
          ServerName from = locator.getRegionLocation(region.getStartKey(), true).getServerName();
          admin.move(region.getEncodedNameAsBytes(), servers.get((servers.indexOf(from) + 1) % servers.size()));
        }
      }
    }

    private static void compact(Admin admin, TableName table) throws Exception {
      admin.flush(table);
      long before = admin.getLastMajorCompactionTimestamp(table);
      admin.majorCompact(table);
      while (admin.getLastMajorCompactionTimestamp(table) <= before
          || admin.getCompactionState(table) != org.apache.hadoop.hbase.client.CompactionState.NONE) {
        Thread.sleep(20);
      }
    }

    private static void where(Connection connection, TableName table) throws Exception {
      try (var locator = connection.getRegionLocator(table)) {
        for (var location : locator.getAllRegionLocations()) {
          System.out.println(location.getServerName().getPort());
        }
      }
    }
  }
}
