import com.alicloud.openservices.tablestore.ClientConfiguration;
import com.alicloud.openservices.tablestore.SyncClient;
import com.alicloud.openservices.tablestore.TableStoreException;
import com.alicloud.openservices.tablestore.TunnelClient;
import com.alicloud.openservices.tablestore.model.DescribeTableRequest;
import com.alicloud.openservices.tablestore.model.RecordColumn;
import com.alicloud.openservices.tablestore.model.StreamRecord;
import com.alicloud.openservices.tablestore.model.tunnel.ChannelInfo;
import com.alicloud.openservices.tablestore.model.tunnel.CreateTunnelRequest;
import com.alicloud.openservices.tablestore.model.tunnel.DescribeTunnelRequest;
import com.alicloud.openservices.tablestore.model.tunnel.DescribeTunnelResponse;
import com.alicloud.openservices.tablestore.model.tunnel.TunnelType;
import com.alicloud.openservices.tablestore.model.tunnel.internal.CheckpointRequest;
import com.alicloud.openservices.tablestore.tunnel.worker.IChannelProcessor;
import com.alicloud.openservices.tablestore.tunnel.worker.ProcessRecordsInput;
import com.alicloud.openservices.tablestore.tunnel.worker.TunnelWorker;
import com.alicloud.openservices.tablestore.tunnel.worker.TunnelWorkerConfig;
import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Workers of the vendor's client. Given: endpoint, instance, key id, secret and a table. Each line that it is given asks for
 * something: {@code create NAME TYPE}, {@code describe NAME}, {@code table}, {@code work NAME}, {@code stop}, and
 * {@code checkpoint NAME CHANNEL}, out of turn. Each line that it prints is JSON: an answer, or a record that a worker got.
 */
public class TunnelWorkers {
  private static final Gson JSON = new Gson();
  private static final List<TunnelWorker> workers = new ArrayList<>();
  private static TunnelClient client;
  private static String table;

  public static void main(String[] given) throws Exception {
    ClientConfiguration configuration = new ClientConfiguration();
    configuration.setEnableResponseValidation(true);
    configuration.setEnableResponseContentMD5Checking(true);
    client = new TunnelClient(given[0], given[2], given[3], given[1], configuration);
    table = given[4];
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.split(" ");
      try {
        Object answer = answer(words, given);
        if (answer != null) say("answer", answer);
      } catch (TableStoreException refused) {
        say("refused", refused.getErrorCode());
      }
    }
    System.exit(0);
  }

  private static Object answer(String[] words, String[] given) throws Exception {
    switch (words[0]) {
      case "create":
        return client.createTunnel(new CreateTunnelRequest(table, words[1], TunnelType.valueOf(words[2]))).getTunnelId();
      case "describe":
        Map<String, String> statuses = new LinkedHashMap<>();
        for (ChannelInfo channel : described(words[1]).getChannelInfos())
          statuses.put(channel.getChannelId(), channel.getChannelStatus().name());
        return statuses;
      case "table":
        SyncClient tables = new SyncClient(given[0], given[2], given[3], given[1]);
        int hours = tables.describeTable(new DescribeTableRequest(table)).getStreamDetails().getExpirationTime();
        tables.shutdown();
        return hours;
      case "work":
        work(described(words[1]).getTunnelInfo().getTunnelId());
        return "at work";
      case "stop":
        for (TunnelWorker worker : workers) worker.shutdown();
        workers.clear();
        return "stopped";
      case "checkpoint":
        String id = described(words[1]).getTunnelInfo().getTunnelId();
        client.checkpoint(new CheckpointRequest(id, "spark-client", words[2], "finished", 99));
        return "taken";
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private static DescribeTunnelResponse described(String tunnel) {
    return client.describeTunnel(new DescribeTunnelRequest(table, tunnel));
  }

  private static void work(String tunnelId) throws Exception {
    TunnelWorkerConfig config = new TunnelWorkerConfig(new Printer());
    config.setCheckpointIntervalInMillis(0);
    config.setMaxRetryIntervalInMillis(200);
    config.setHeartbeatTimeoutInSec(60);
    // The setter wants five seconds and more, which is how long each split would take here.
    Field interval = TunnelWorkerConfig.class.getDeclaredField("heartbeatIntervalInSec");
    interval.setAccessible(true);
    interval.set(config, 1L);
    TunnelWorker worker = new TunnelWorker(tunnelId, client, config);
    workers.add(worker);
    worker.connectAndWorking();
  }

  private static synchronized void say(String what, Object said) {
    System.out.println(JSON.toJson(Map.of(what, said)));
    System.out.flush();
  }

  private static class Printer implements IChannelProcessor {
    @Override
    public void process(ProcessRecordsInput input) {
      for (StreamRecord record : input.getRecords()) {
        List<String> columns = new ArrayList<>();
        for (RecordColumn column : record.getColumns())
          columns.add(
              column.getColumnType() + " " + column.getColumn().getName() + " " + column.getColumn().getValue());
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("channel", input.getChannelId());
        row.put("operation", record.getRecordType().name());
        row.put("key", record.getPrimaryKey().getPrimaryKeyColumn(0).getValue().toString());
        row.put("columns", columns);
        say("record", row);
      }
    }

    @Override
    public void shutdown() {}
  }
}
