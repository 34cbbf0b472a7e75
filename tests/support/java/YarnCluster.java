import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.LocalDirsHandlerService;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.nodemanager.ResourceView;
import org.apache.hadoop.yarn.server.nodemanager.webapp.WebServer;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;

/** A ResourceManager and a NodeManager, configured by the yarn-site.xml on the class path. */
public class YarnCluster {
  public static void main(String[] given) throws Exception {
    DefaultMetricsSystem.setMiniClusterMode(true); // both have metrics of one name
    ResourceManager resources = new ResourceManager();
    resources.init(new YarnConfiguration());
    resources.start();
    NodeManager node = new WithoutPages();
    node.init(new YarnConfiguration());
    node.start();
    Thread.currentThread().join();
  }

  /** Pages of a second server in one process would take the place of the first one's. */
  private static class WithoutPages extends NodeManager {
    @Override
    protected WebServer createWebServer(
        Context context, ResourceView view, ApplicationACLsManager acls, LocalDirsHandlerService folders) {
      return new WebServer(context, view, acls, folders) {
        @Override
        protected void serviceStart() {}
      };
    }
  }
}
