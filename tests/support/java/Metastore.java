import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** Hive's metastore, with the tables of its locks, which its own start does not make. */
public class Metastore {
  public static void main(String[] given) throws Throwable {
    TxnDbUtil.prepDb(new HiveConf());
    HiveMetaStore.main(given);
  }
}
